"""Excel workbooks."""
