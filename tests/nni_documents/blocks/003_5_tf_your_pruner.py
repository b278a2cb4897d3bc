class YourPruner(nni.compressors.tfCompressor.TfPruner):
    def __init__(self, your_input):
        # defaultly, we suggest you to use configure_list as input
        pass
    
    # don not change calc_mask() input 
    def calc_mask(self, layer_info, weight):
        # you can get layer name in layer_info.name
        # you can get weight data in weight
        # design your mask and return your mask
        return your_mask
    
    # you can also design your method help to generate mask
    def your_method(self, your_input):
        #your code
