"""Text generation with a key/value cache, chat and serving."""
