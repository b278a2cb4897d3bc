class YourPruner(nni.compressors.torchCompressor.TorchQuantizer):
    def __init__(self, your_input):
        pass
    
    # don not change quantize_weight() input 
    def quantize_weight(self, layer_info, weight):
        # you can get layer name in layer_info.name
        # you can get weight data in weight
        # design your quantizer and return new weight
        return new_weight
    
    # you can also design your method
    def your_method(self, your_input):
        #your code
    
    def preprocess_model(self, model):
        #preprocess model
