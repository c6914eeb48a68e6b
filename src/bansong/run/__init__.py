"""One run: survey, answers, outputs, report."""
