"""Which kind of step a reply is: the vocabulary, and the push parser that reads it off a stream."""
