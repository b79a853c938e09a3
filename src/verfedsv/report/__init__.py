"""Reports for people: plain data, and HTML, Markdown and the terminal to show it."""
