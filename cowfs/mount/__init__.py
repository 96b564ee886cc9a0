"""The FUSE layer: requests, operations, kernel caches. The only importer of pyfuse3."""
