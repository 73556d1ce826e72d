"""The models HP-GMN is compared with, one file each, imported on use."""
