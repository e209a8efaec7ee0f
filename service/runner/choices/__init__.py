"""What is chosen before the first step, by timing: the number format, how each weight is multiplied by, which steps
have a CUDA graph; and by looking, in which order products are summed. One value (`StepChoices`), made here or read from
a file. Nobody else times to choose, and nobody chooses later. The loading thread."""
