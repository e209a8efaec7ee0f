"""`headrace doctor`: finds what would keep this machine from serving. Any thread; nothing is left behind."""
