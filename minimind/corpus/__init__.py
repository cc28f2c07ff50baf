"""The built-in bilingual corpus, with its known entropy floor."""
