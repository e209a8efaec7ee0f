"""What is chosen before the first step. By timing: the number format, the kernel of each weight, which step sizes have
a CUDA graph. By trying: the order in which products are summed. All of it is one value (`StepChoices`), made here or
read from a file; nothing else in the service times to choose, and nothing is chosen later. Runs on the loading thread.
"""
