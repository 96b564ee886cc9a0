"""The FUSE layer: operations, request loop, kernel caches. The only importer of pyfuse3."""
