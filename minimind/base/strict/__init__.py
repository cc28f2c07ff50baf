"""Strict readers of JSON and YAML that strangers may have written."""
