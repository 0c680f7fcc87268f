"""What a person looks at: pictures and the verdict page, from a trial's folder alone."""
