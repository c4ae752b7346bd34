"""How clients reach an emulated instrument: raw sockets and HiSLIP."""
