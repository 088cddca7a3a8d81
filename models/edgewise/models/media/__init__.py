"""Pictures and other media from callers: checked before they are decoded."""
