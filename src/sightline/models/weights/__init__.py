"""Weights of any origin: read as data, identified by their shapes, renamed and fitted to a model.

reader      files, as data only
layouts     the published layouts as renaming rules
shapes      the architecture that names and shapes show
fit         a state dict for a model of another size, number of channels or of classes
identify    the variant that a state dict belongs to
heads       how many heads the weights were trained with
checkpoint  a file of one of our families as a model
"""
