"""Laws of the squared-norm ratio X = n̂²/n², and the values that describe a norm method."""
