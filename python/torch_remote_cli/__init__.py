"""The command `torch-remote`. It is next to the package, not in it: importing torch_remote imports torch, which takes
long."""
