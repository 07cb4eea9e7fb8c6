"""Barcode MNIST: a small convolutional network on digits with many rare classes (appendix B).

Train with `studies.train_privately`; the set from `barcode_data` is its task.
"""

from paper_figures.barcode._data import BarcodeData as BarcodeData
from paper_figures.barcode._data import barcode_data as barcode_data
from paper_figures.barcode._data import with_barcode as with_barcode
from paper_figures.barcode._images import digits_images as digits_images
from paper_figures.barcode._images import mnist_images as mnist_images
from paper_figures.barcode._network import barcode_network as barcode_network

__all__ = ["BarcodeData", "barcode_data", "barcode_network", "digits_images", "mnist_images", "with_barcode"]
