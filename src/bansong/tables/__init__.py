"""Files of tables: formats, headers, columns."""
