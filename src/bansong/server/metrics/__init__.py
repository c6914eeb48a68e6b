"""Prometheus metrics of a server: counters, gauges read on request, and their own listener."""
