"""Tests of `cowfs verify`: each breaks one thing in a sound store."""
