"""The commands; `cli.group` says which module has which."""
