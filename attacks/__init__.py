"""Programs that attack kvward from outside, over and over. Each is a command and a JSON report."""
