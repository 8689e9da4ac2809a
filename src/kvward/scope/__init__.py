"""Room of kvward; see ARCHITECTURE.md."""
