"""Between the user's rows and the engine's answers: what to look up, what came back, and the account of it."""
