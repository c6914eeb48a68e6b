"""Buying answers: the ledger, and the engines that pay."""
