"""`headrace doctor`: what would keep this machine from serving, before it does. Any thread; nothing is left behind."""
