"""What is chosen by timing before the first step: the number format, how each weight is multiplied by, which steps have
a CUDA graph. One value (`StepChoices`), made here or read from a file. Nobody else times to choose, and nobody chooses
later. The loading thread."""
