"""Watch lists of a server: scheduled checks, delivery of closures, lists served from memory."""
