"""What Git LFS leaves in the place of a file that was not fetched."""

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 4967215360\n"
