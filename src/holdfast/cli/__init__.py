"""The command line: one file a command; parse, call, print.

Commands that train or test are here; those for hosts are in `cluster`, those that show runs in
`observe`.
"""
