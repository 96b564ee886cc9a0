"""Tests of the adapter for cursor."""
