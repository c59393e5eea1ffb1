"""What happens to segments and directories as a whole: open, recover, swap, delete, close."""
