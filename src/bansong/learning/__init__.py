"""The scorecard learns from what really bounced, behind its gate."""
