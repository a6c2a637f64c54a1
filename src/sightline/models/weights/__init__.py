"""Weights of any origin: read as data, identified by their shapes, renamed and fitted to a model.

reader      files, as data only
archive     zip archives of torch.save, checked before they are read
layouts     the published layouts as renaming rules
shapes      the architecture that names and shapes show
fit         a state dict for a model of another size, number of channels or of classes
identify    the variant that a state dict belongs to
recorded    arguments in the header of a file, an allow-list with limits
heads       how many heads the weights were trained with
checkpoint  a file of one of our families as a model
published   where published weights are, and the cache for them
description the arguments of a model in timm's description of it
"""
