"""Names that people's YAMLs have: Hugging Face's, the articles', sections. ``translate`` makes them this trainer's."""
