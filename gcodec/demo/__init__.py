"""Small real trainings that need no download; the codec is demonstrated on their gradients."""
