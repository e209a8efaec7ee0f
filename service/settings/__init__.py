"""Every setting, and reading them from flags, environment and files. Once, at the start; any command line may.

The parts of the service receive the plain values of `service/config.py` and import nothing of this.
"""
