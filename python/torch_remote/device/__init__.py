"""Devices, their memory, random numbers, streams and autocast. `torch.remote` (torch_remote/remote.py) re-exports them;
modules of this package import them from here."""
