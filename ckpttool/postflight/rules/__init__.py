"""The rules by which two logs show whether a resume worked."""
