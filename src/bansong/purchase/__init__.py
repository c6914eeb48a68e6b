"""Purchase of answers from the hosted service: the ledger, and the engines that buy."""
