"""All settings, and reading them from flags, environment and files. Used once, at start, by any command.

The parts of the service receive the plain values of `service/config.py` and do not import this package.
"""
