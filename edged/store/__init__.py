"""Where models come from and where they are kept: catalogue, package index, download, models folder."""
