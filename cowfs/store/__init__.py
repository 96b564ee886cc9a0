"""The store: an LMDB environment. The only importer of lmdb."""
