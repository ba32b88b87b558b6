"""For programs that use edged from afar. Each module stands alone beside `protocol` and `errors`."""
