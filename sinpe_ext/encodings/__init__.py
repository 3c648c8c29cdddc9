"""What an encoding is: its fields and names, its frequencies, its constants for the kernels. No torch."""
