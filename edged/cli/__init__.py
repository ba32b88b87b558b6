"""The command line: one module per command, each exporting `command`. Only this part prints."""
