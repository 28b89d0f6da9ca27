"""The gvisor runtime: boxes on a kernel of their own, which is a program of this machine (runsc)."""
