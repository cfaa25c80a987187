"""Side-by-side measurements: each module with a `main` is one command."""
