"""Multiple choice by log-likelihood: the questions of a file, what a model makes of each choice, and the scores."""
