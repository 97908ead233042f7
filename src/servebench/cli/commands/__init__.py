"""The commands, one file each; every module has `command`."""
